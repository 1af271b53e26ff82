"""The World Factbook of the wheel `factbook`: its pages, its fields, and what they say of each country."""
