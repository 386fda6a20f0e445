"""Command ``mpidec predict``: what a step costs on a cluster, before there is one."""
