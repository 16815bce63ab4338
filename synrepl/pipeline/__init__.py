"""Jobs on Spark that archive, audit, measure, compact and replay the streams of a daemon."""
