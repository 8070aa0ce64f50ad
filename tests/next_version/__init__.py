"""A made-up next version of the product: by it tests keep the promise that neighbouring releases run side by side."""
