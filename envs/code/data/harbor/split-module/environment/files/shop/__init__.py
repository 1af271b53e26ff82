"""A small shop."""

from shop.everything import Stock, discount, gross, net
