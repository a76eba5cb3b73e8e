"""What drafters with a head share: their model code, layer stacks and published trees."""
