"""Jobs on Spark that archive, audit, measure, compact, watch and replay the streams of a daemon."""
