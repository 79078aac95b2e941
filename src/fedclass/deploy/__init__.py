"""Sites on machines of their own, over Flower."""
