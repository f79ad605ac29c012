"""The public face of `app.Doubtless`, by what its user is about: declaring, running, looking, deciding."""
