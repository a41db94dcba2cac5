"""The layouts of this trial: functions of a run and a task, in tables `KINDS` by name."""
