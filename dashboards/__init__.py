"""The dashboards as code: two boards made of panels that are each described once.

`panel.py` and `board.py` say what a panel and a board are, `vm.py` and `fleet.py` describe them, `draw.py` alone makes
Grafana's JSON, and `python -m dashboards.build` writes it. Nothing of the exporter is imported here. Begin reading in
`vm.py`.
"""
