"""The status of sequences as an operator sees it: measured by `measure`, in words by `text`."""
