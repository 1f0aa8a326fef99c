"""From order to batch: the machine decides, the driver performs, and the state records where to resume."""
