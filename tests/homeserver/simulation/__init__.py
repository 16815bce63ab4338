"""Writers over one database and a daemon, through seeded bad luck."""
