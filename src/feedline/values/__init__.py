"""Values as users write them, and as they are shown to users."""
