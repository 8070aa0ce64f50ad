"""The consensus core under test: scenario runner, simulator and mutants share one world of nodes, links and disks."""
