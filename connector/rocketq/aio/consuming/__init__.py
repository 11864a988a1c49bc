"""The asynchronous twins of `rocketq.consuming`."""
