"""The program: command line, configurations, runs and reports. Nothing outside imports it; it holds no mathematics."""
