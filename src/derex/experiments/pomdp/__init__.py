"""Section 5 and appendix D: histories and beliefs in four rooms whose agent is hidden."""
