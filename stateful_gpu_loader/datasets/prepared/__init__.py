"""Images decoded and resized once, and kept in files for all later epochs."""
