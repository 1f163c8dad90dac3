"""`dlog bench spark`: logs read and written from Spark, beside a trivial Python source and Spark's own."""
