#include <accelerate/optimizer.h>
int main_axis() { return degree(Axis::shard) + degree(Axis::pipeline); }
