"""What a run will take on given devices, predicted from its settings before anything is loaded."""
