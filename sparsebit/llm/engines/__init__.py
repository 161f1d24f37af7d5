"""Stock engines that load what was exported, to prove it: one file each."""
