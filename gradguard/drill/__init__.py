"""The fire drill: one fault at a time strikes a small training, without and with the guard."""
