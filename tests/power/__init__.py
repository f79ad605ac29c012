"""Power loss: every file operation of a run recorded, every state replayed in which a disk may be left, the store opened on it."""
