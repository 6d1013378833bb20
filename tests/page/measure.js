// Measures the pages in this page's frames once all are there; the answer, as JSON, becomes the title.
"use strict";

function channels(colour) {
  return colour.match(/[\d.]+/g).map(Number);
}

// The relative luminance of a colour, by WCAG 2.2.
function luminance(colour) {
  const [red, green, blue] = channels(colour).map((value) => {
    const part = value / 255;
    return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

// The first ground below an element that is not transparent.
function ground(view, element) {
  for (let below = element; below; below = below.parentElement) {
    const colour = view.getComputedStyle(below).backgroundColor;
    const [, , , alpha = 1] = channels(colour);
    if (alpha > 0) return colour;
  }
  return "rgb(255, 255, 255)";
}

function contrast(one, other) {
  const [light, dark] = [luminance(one), luminance(other)].sort((left, right) => right - left);
  return (light + 0.05) / (dark + 0.05);
}

function measure(frame) {
  const view = frame.contentWindow;
  const page = view.document;
  const walker = page.createTreeWalker(page.body, NodeFilter.SHOW_TEXT);
  const lines = [];
  const faint = [];
  let texts = 0;
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const text = node.textContent.trim();
    if (!text) continue;
    const element = node.parentElement;
    if (element.closest("thead") && view.getComputedStyle(element.closest("thead")).position === "absolute") continue;
    texts += 1;
    const ratio = contrast(view.getComputedStyle(element).color, ground(view, element));
    if (ratio < 4.5) faint.push(`${text.slice(0, 40)}: ${ratio.toFixed(2)}`);
    const range = page.createRange();
    range.selectNodeContents(node);
    for (const box of range.getClientRects()) if (box.width > 0) lines.push({ box, text, node });
  }
  const width = page.documentElement.clientWidth;
  const outside = lines.filter(({ box }) => box.left < 0 || box.right > width + 0.5).map(({ text }) => text.slice(0, 40));
  const overlapping = [];
  lines.sort((left, right) => left.box.top - right.box.top);
  // Boxes of lines are as high as the font asks: two pixels of them are not yet letters on letters.
  for (let first = 0; first < lines.length; first += 1) {
    for (let next = first + 1; next < lines.length; next += 1) {
      const [one, other] = [lines[first].box, lines[next].box];
      if (other.top > one.bottom - 2) break;
      if (lines[first].node !== lines[next].node && one.left < other.right - 1 && other.left < one.right - 1) {
        overlapping.push(`${lines[first].text.slice(0, 40)} / ${lines[next].text.slice(0, 40)}`);
      }
    }
  }
  const dark = view.matchMedia("(prefers-color-scheme: dark)").matches;
  const scheme = dark ? "dark" : "light";
  return { width: frame.clientWidth, scrollWidth: page.documentElement.scrollWidth, texts, outside, overlapping, faint, scheme };
}

addEventListener("load", () => {
  const frames = [...document.querySelectorAll("iframe")];
  document.title = JSON.stringify(Object.fromEntries(frames.map((frame) => [frame.name, measure(frame)])));
});
