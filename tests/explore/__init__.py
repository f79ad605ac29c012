"""The protocol, explored: every state that `decide`, the fold and an unkind world can reach together, within bounds."""
