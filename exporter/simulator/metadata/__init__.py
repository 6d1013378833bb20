"""The simulated metadata service: it plays a scenario file as Azure would, takes approvals, and fails on request.

May import `core`; no other part of the simulator. Its scenario files are in `scenarios/`.
Begin reading in `platform`, the pure part: a scenario and the approvals in, a timeline of documents out. `scenario` and
`story` read and hold the scenario, `play` adds what was approved so far, `service`, `protocol`, `transport` and
`faults` answer HTTP with it, `instance` describes the VM.
"""
