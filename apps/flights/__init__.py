"""The delays of a year's flights out of New York, counted twice: by Spark in one batch, and live
by processing elements that Spark feeds over sockets. The figures must be equal.
"""
