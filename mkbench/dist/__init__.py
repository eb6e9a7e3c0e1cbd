"""Ranks and nodes: how processes are started, watched, connected and given memory they share."""
