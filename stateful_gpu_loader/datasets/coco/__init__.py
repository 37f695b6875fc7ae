"""Images of a folder with the boxes, labels and masks of a COCO annotation file."""
