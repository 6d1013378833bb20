"""What each panel says about itself: title, description, text for no data, unit, thresholds, words for values."""

from __future__ import annotations

from typing import Final

from dashboards.panels import (
    BAD,
    COUNTDOWN_STEPS,
    COUNTDOWN_WORDS,
    GOOD,
    NEUTRAL,
    SOON,
    STATE_WORDS,
    UNKNOWN,
    About,
    words_for,
)

SILENT: Final = "Not known: no data"
"""What a panel says whose series are gone altogether."""

NOBODY: Final = "Not known: no exporter sees"
NO_RULES: Final = "Not known: no exporter, or alerts/rules.yml is not loaded"
PURPLE: Final = ((None, UNKNOWN),)
CAREFUL: Final = ((None, UNKNOWN), (0, GOOD), (1, SOON))
ALARMING: Final = ((None, UNKNOWN), (0, GOOD), (1, BAD))

VM_STATE: Final = About(
    "State",
    "What is on at this VM. Purple: nobody knows, because the exporter is down or the metadata service does not "
    "answer it. Blue: nothing can be said yet, because Azure may still be switching the service on, or because there "
    "are events and the VM's own name is not known.",
    SILENT,
    "none",
    PURPLE,
    (STATE_WORDS,),
)
VM_COUNTDOWN: Final = About(
    "Starts in",
    "Time until the earliest NotBefore of an event that names this VM. It starts sooner if somebody approves it.",
    SILENT,
    "dtdhms",
    COUNTDOWN_STEPS,
    COUNTDOWN_WORDS,
)
VM_AGE: Final = About(
    "Last good answer",
    "How long ago the metadata service gave a good answer. What the other panels show is as old as that.",
    "Not known",
    "s",
    ((None, UNKNOWN), (0, GOOD), (120, SOON), (300, BAD)),
    decimals=0,
)
VM_MODE: Final = About(
    "Approvals",
    "Whether this agent approves events: off, dry-run (it decides and sends nothing) or enforce.",
    SILENT,
    "none",
    PURPLE,
    (words_for({0: ("off", "text"), 1: ("dry-run", "text"), 2: ("enforce", NEUTRAL)}),),
)
VM_HOLD: Final = About(
    "Hold",
    "Whether the hold file holds every approval: it is there, or cannot be seen to be absent.",
    SILENT,
    "none",
    PURPLE,
    (words_for({0: ("none", "text"), 1: ("held", SOON)}),),
)
VM_EVENTS: Final = About(
    "What is on",
    "Every event that names this VM. Where there is none, the row says why. 'not known' beside events: they are "
    "the last known truth.",
    SILENT,
    "none",
    PURPLE,
)
VM_TIMELINE: Final = About(
    "Events over time",
    "One lane for the VM, one for each event: announced, then under way. Gaps are times without data.",
    SILENT,
    "none",
    PURPLE,
    (STATE_WORDS,),
)
VM_NOTICE: Final = About(
    "Notice given",
    "Average time between the first sight of an event and its NotBefore in this range, by type. Only events whose "
    "arrival was seen by unbroken polling count.",
    "None measured in this range",
    "s",
    ((None, "text"), (0, BAD), (60, SOON), (600, GOOD)),
)
VM_DECISIONS: Final = About(
    "Decisions",
    "What the rules said about events in this range: approve or hold, the reason, and the rule that matched.",
    "None in this range",
    "none",
)
VM_DECISIONS_NOW: Final = About(
    "Decisions now",
    "What stands of every event of this VM: approve or hold, the reason, and the rule that matched. not-scheduled: it "
    "is under way, and there is nothing left to approve.",
    "No event is known to name this VM",
    "none",
)
VM_APPROVALS: Final = About(
    "Approvals sent",
    "Approvals in this range: sent; refused or unanswered; postponed to the next document, because theirs had become "
    "too old or a last look found a hold; and outdated: approved events that then changed into what would be held.",
    SILENT,
    "none",
    ((None, NEUTRAL),),
    decimals=0,
)
VM_FELT: Final = About(
    "Interruption: felt and announced",
    "Bars: how long this VM noticed that it stood still during an event, by what noticed it (a jump of the clock, "
    "or no CPU). Line: the duration that the started event announced. None observed does not mean none happened.",
    "None observed",
    "s",
    ((None, NEUTRAL),),
)
VM_POLLS: Final = About(
    "Polls",
    "Polls of the metadata service per second, and those that failed, by reason.",
    SILENT,
    "reqps",
    ((None, GOOD),),
)
VM_DURATION: Final = About(
    "Poll duration",
    "How long the metadata service takes to answer: the median and the slowest of a hundred.",
    SILENT,
    "s",
    ((None, GOOD), (5, BAD)),
)
VM_WAITING: Final = About(
    "Records waiting",
    "Records in the outbox that a destination does not have yet. They are tried again until it has them.",
    SILENT,
    "none",
    ((None, GOOD), (1, SOON)),
    decimals=0,
)
VM_DESTINATIONS: Final = About(
    "Destinations",
    "Per destination: records waiting now and how long the oldest has waited; sent, failed, lost in this range; "
    "refused for good and kept.",
    SILENT,
    "none",
)
VM_OUTBOX: Final = About(
    "Outbox",
    "How full the outbox is. Records wait there until every destination has them; when it is full, they are lost.",
    SILENT,
    "percentunit",
    ((None, UNKNOWN), (0, GOOD), (0.5, SOON), (0.8, BAD)),
    decimals=0,
)
VM_WRITABLE: Final = About(
    "Outbox on disk",
    "Whether the disk takes what is recorded. While it does not, nothing is approved and records wait in memory.",
    SILENT,
    "none",
    PURPLE,
    (words_for({0: ("refused", BAD), 1: ("written", GOOD)}),),
)
VM_DOCUMENT: Final = About(
    "Events, all VMs",
    "All events that this VM is told about, those of its neighbours in the scale set or availability set included.",
    "Not known",
    "none",
    ((None, UNKNOWN), (0, "text")),
    decimals=0,
)
VM_MACHINE: Final = About("This VM", "What the metadata service says about the machine.", "Not known", "none")

FLEET_BLIND: Final = About(
    "Blind or down",
    "How many VMs nobody watches: the exporter does not answer, or the metadata service does not answer it.",
    NO_RULES,
    "none",
    ALARMING,
    decimals=0,
)
FLEET_WARMING: Final = About(
    "Not known yet",
    "Exporters whose VM Azure may still be switching the service on for: five minutes after the first poll, "
    "or until an event was seen.",
    NO_RULES,
    "none",
    ((None, UNKNOWN), (0, GOOD), (1, NEUTRAL)),
    decimals=0,
)
FLEET_STARTED: Final = About(
    "VMs in maintenance",
    "VMs with an event under way. Only VMs that are seen count.",
    NOBODY,
    "none",
    ALARMING,
    decimals=0,
)
FLEET_AHEAD: Final = About(
    "VMs scheduled",
    "VMs that a scheduled event names. Only VMs that are seen count.",
    NOBODY,
    "none",
    CAREFUL,
    decimals=0,
)
FLEET_SOON: Final = About(
    "Next start in", "Time until the earliest NotBefore of all.", NOBODY, "dtdhms", COUNTDOWN_STEPS, COUNTDOWN_WORDS
)
FLEET_BEHIND: Final = About(
    "Outboxes behind",
    "VMs with a record that has waited for its destination for more than ten minutes.",
    NO_RULES,
    "none",
    ALARMING,
    decimals=0,
)
FLEET_GROUPS: Final = About(
    "What is coming, by scale set and type",
    "Scheduled events of all VMs: how many VMs they name, how many events there are, and when they may start.",
    NO_RULES,
    "none",
    PURPLE,
)
FLEET_WHEN: Final = About(
    "When",
    "How many VMs have an event whose NotBefore falls into each span from now.",
    NOBODY,
    "none",
    CAREFUL,
    decimals=0,
)
FLEET_EVENTS: Final = About(
    "VMs with an event",
    "Up to a hundred VMs, those under way first, then by time of start. A name leads to the VM's own dashboard.",
    NO_RULES,
    "none",
    PURPLE,
)
FLEET_UNSEEN: Final = About(
    "VMs that nobody sees",
    "Exporters that are down, blind, or still warming up; and for how long the metadata service has not answered.",
    NO_RULES,
    "none",
    PURPLE,
)
FLEET_OVER_TIME: Final = About(
    "VMs with an event over time",
    "How many VMs have an event, by type and status. Purple: VMs that nobody sees, they may have one too.",
    NO_RULES,
    "none",
    PURPLE,
    decimals=0,
)
FLEET_WEEKLY: Final = About(
    "Maintenance per week",
    "Starts in the seven days before each moment, by type. An event of five VMs counts five times.",
    NO_RULES,
    "none",
    ((None, NEUTRAL),),
    decimals=0,
)
FLEET_APPROVED: Final = About(
    "Who approved",
    "How the maintenance of this range came to start, as far as it was seen. 'Somebody else' includes the other VMs of "
    "an event.",
    NO_RULES,
    "none",
    ((None, NEUTRAL),),
    decimals=0,
)
FLEET_EXPORTERS: Final = About(
    "VMs that nobody sees, over time",
    "How many exporters are not known yet, blind, or down.",
    NO_RULES,
    "none",
    ((None, GOOD),),
    decimals=0,
)
FLEET_OUTBOXES: Final = About(
    "Slowest destinations",
    "Destinations with a record that has waited for more than ten minutes, the longest waits first, up to fifty.",
    "None is behind, as far as exporters answer",
    "none",
)
