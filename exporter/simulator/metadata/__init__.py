"""The simulated metadata service: it plays a scenario file as Azure would, takes approvals, and fails on request.

May import `core`; no other part of the simulator. Its scenario files are in `scenarios/`.
Begin reading in `platform`: a scenario and the approvals in, a timeline of documents out, and `Play` for approvals that
come while it runs. `scenario` reads and holds the scenario; `service`, `protocol`, `transport` and `faults` answer.
"""
