"""Recipes that change colors, blur, sharpen or erase."""
