/* Naps in a method. */
#include "nap.h"

namespace shape {
struct Circle {
	__attribute__((noinline)) void wait(long milliseconds)
	{
		nap(milliseconds);
		__asm__ volatile("" ::: "memory");
	}
};
}

int main()
{
	shape::Circle circle;
	for (;;)
		circle.wait(20);
}
