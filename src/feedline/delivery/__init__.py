"""From order to batch: the machine decides, the driver performs, the state says how to go on."""
