"""The simulated metadata service: it plays a scenario file as Azure would, accepts approvals, and fails on request.

Of the simulator, it may import only `faults`. Its scenario files are in `scenarios/`. Start reading in
`platform`, which turns a scenario and approvals into a timeline of documents; `Play` handles approvals during a play.
`scenario` reads scenarios; `service`, `protocol`, `transport`, and `faults` serve HTTP.
"""
