// Draws a dashboard's panels with Grafana's own components, at the places that the dashboard gives them.
// build.mjs puts DASHBOARD, ANSWERS (by panel id), MODE ("light" or "dark") and SPAN ([from, to] in ms) before this file.
import React from 'react';
import { createRoot } from 'react-dom/client';
import * as grafana from '@grafana/data';
import { BarGauge, BigValue, GlobalStyles, PanelChrome, Table, ThemeContext, TimeSeries } from '@grafana/ui';
import { display, piped, reduced, text } from './pipeline.mjs';

declare const DASHBOARD: any, ANSWERS: any, MODE: 'light' | 'dark', SPAN: [number, number];
const theme = grafana.createTheme({ colors: { mode: MODE } });
const CELL = 57; // in a window of 1,400 pixels
const ROW = 34;
const GAP = 8;
const range: any = { from: grafana.dateTime(SPAN[0]), to: grafana.dateTime(SPAN[1]), raw: { from: 'now-6h', to: 'now' } };

type Drawn = (width: number, height: number) => React.ReactNode;

// Grafana's text in a panel without data.
const nothing = (panel: any): Drawn => (width, height) => (
  <div style={{ width, height, display: 'flex', alignItems: 'center', justifyContent: 'center', color: theme.colors.text.secondary }}>
    {panel.fieldConfig.defaults.noValue ?? 'No data'}
  </div>
);

function figures(panel: any, data: any[]): Drawn {
  const shown = reduced(panel, data, theme);
  return (width, height) => (
    <div style={{ display: 'flex', gap: 4 }}>
      {shown.map((one: any, at: number) => (
        <BigValue
          key={at}
          theme={theme}
          value={shown.length === 1 ? { ...one.display, title: '' } : one.display}
          width={width / shown.length - 4}
          height={height}
          colorMode={panel.options.colorMode}
          graphMode={panel.options.graphMode}
          justifyMode={panel.options.justifyMode}
          textMode={panel.options.textMode}
        />
      ))}
    </div>
  );
}

function bars(panel: any, data: any[]): Drawn {
  const shown = reduced(panel, data, theme);
  const most = Math.max(1, ...shown.map((one: any) => one.display.numeric || 0));
  return (width, height) => (
    <div>
      {shown.map((one: any, at: number) => (
        <div key={at} style={{ marginBottom: 4 }}>
          <BarGauge
            theme={theme}
            value={one.display}
            field={{ ...one.field, min: 0, max: most } as any}
            width={width}
            height={Math.min(40, height / shown.length - 4)}
            orientation={panel.options.orientation}
            displayMode={panel.options.displayMode}
            valueDisplayMode={panel.options.valueMode}
            display={one.display ? (it: any) => ({ ...one.display, numeric: it }) : undefined}
            namePlacement={panel.options.namePlacement}
            itemSpacing={4}
            lcdCellWidth={10}
          />
        </div>
      ))}
    </div>
  );
}

function curves(panel: any, data: any[]): Drawn {
  return (width, height) => (
    <TimeSeries
      frames={data}
      width={width}
      height={height}
      timeRange={range}
      timeZone="utc"
      structureRev={1}
      legend={{ ...panel.options.legend, showLegend: true, calcs: [] } as any}
      options={{} as any}
    />
  );
}

// Grafana's state timeline is not in @grafana/ui: this page draws the lanes, and the pipeline gives their texts and colours.
function lanes(data: any[]): Drawn {
  return (width, height) => {
    const label = 260;
    const at = (time: number) => label + ((time - SPAN[0]) / (SPAN[1] - SPAN[0])) * (width - label);
    return (
      <svg width={width} height={height} fontSize={12} fill={theme.colors.text.primary}>
        {data.map((frame, lane) => {
          const [time, value] = frame.fields;
          const step = time.values[1] - time.values[0] || 60000;
          const name = grafana.getFieldDisplayName(value, frame, data);
          const boxes: any[] = [];
          time.values.forEach((moment: number, point: number) => {
            const state = value.values[point];
            if (state === null) return;
            const last = boxes.at(-1);
            if (last && last.state === state && last.to === moment) last.to = moment + step;
            else boxes.push({ state, from: moment, to: moment + step });
          });
          return (
            <g key={lane} transform={`translate(0 ${lane * 26})`}>
              <text x={0} y={17}>{name.slice(0, 36)}</text>
              {boxes.map((box, number) => {
                const shown = display(value, box.state, theme);
                const wide = at(box.to) - at(box.from);
                return (
                  <g key={number}>
                    <rect x={at(box.from)} y={2} width={wide} height={22} fill={shown.color} />
                    {wide > 70 && <text x={at(box.from) + 4} y={17} fill={theme.colors.getContrastText(shown.color!)}>{text(shown)}</text>}
                  </g>
                );
              })}
            </g>
          );
        })}
      </svg>
    );
  };
}

async function drawn(panel: any): Promise<Drawn> {
  const data = await piped(panel, ANSWERS[panel.id], theme);
  if (panel.type === 'stat') return figures(panel, data);
  if (panel.type === 'bargauge') return figuresOrBars(panel, data);
  if (data.length === 0 || data.every((frame: any) => frame.length === 0)) return nothing(panel);
  if (panel.type === 'table') return (width, height) => <Table data={data[0]} width={width} height={height} />;
  if (panel.type === 'timeseries') return curves(panel, data);
  return lanes(data);
}

const figuresOrBars = (panel: any, data: any[]): Drawn => (data.length ? bars(panel, data) : nothing(panel));

// The texts of table cells and headings that end beyond the visible part of their cell or panel.
function cut(): string[] {
  const found: string[] = [];
  for (const cell of document.querySelectorAll<HTMLElement>('[role=cell], [role=columnheader]')) {
    const content = document.createRange();
    const texts = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
      content.selectNode(texts.currentNode);
      let edge = cell.getBoundingClientRect().right;
      for (let part = texts.currentNode.parentElement; part; part = part.parentElement) {
        if (getComputedStyle(part).overflowX !== 'visible') edge = Math.min(edge, part.getBoundingClientRect().right);
      }
      if (content.getBoundingClientRect().right > edge + 0.5) found.push(texts.currentNode.textContent ?? '');
    }
  }
  return found;
}

async function main() {
  const boxes: React.ReactNode[] = [];
  let bottom = 0;
  for (const panel of DASHBOARD.panels) {
    const { x, y, w, h } = panel.gridPos;
    const [width, height] = [w * CELL - GAP, h * ROW - GAP];
    const style: React.CSSProperties = { position: 'absolute', left: x * CELL + GAP, top: y * ROW + GAP, width, height };
    bottom = Math.max(bottom, (y + h) * ROW + 2 * GAP);
    if (panel.type === 'row') {
      boxes.push(<div key={panel.id} style={{ ...style, fontWeight: 600, padding: 6 }}>{panel.title}</div>);
      continue;
    }
    const body = await drawn(panel);
    boxes.push(
      <div key={panel.id} style={style}>
        <PanelChrome title={panel.title} description={panel.description} width={width} height={height}>
          {(innerWidth: number, innerHeight: number) => body(innerWidth, innerHeight - GAP)}
        </PanelChrome>
      </div>
    );
  }
  document.body.style.cssText = `margin:0;background:${theme.colors.background.canvas};color:${theme.colors.text.primary};font-family:${theme.typography.fontFamily}`;
  createRoot(document.getElementById('root')!).render(
    <ThemeContext.Provider value={theme}>
      <GlobalStyles />
      <div style={{ position: 'relative', width: 24 * CELL + GAP, height: bottom }}>{boxes}</div>
    </ThemeContext.Provider>
  );
  setTimeout(() => {
    document.body.dataset.cut = JSON.stringify(cut());
    document.title = 'drawn';
  }, 1500);
}

main().catch((error) => {
  document.body.innerText = `failed ${error.stack}`;
  document.title = 'failed';
});
