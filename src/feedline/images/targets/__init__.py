"""What moves with an image: boxes, masks, keypoints."""
