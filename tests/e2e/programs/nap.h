/* Sleeps without the C library, which most distributions build without frame pointers. */
#include <sys/syscall.h>
#include <time.h>

static inline __attribute__((always_inline)) void nap(long milliseconds)
{
	struct timespec time = { milliseconds / 1000, milliseconds % 1000 * 1000000 };
#if defined(__x86_64__)
	long result = SYS_nanosleep;
	__asm__ volatile("syscall" : "+a"(result) : "D"(&time), "S"(0) : "rcx", "r11", "memory");
#elif defined(__aarch64__)
	register long number __asm__("x8") = SYS_nanosleep;
	register long first __asm__("x0") = (long)&time;
	register long second __asm__("x1") = 0;
	__asm__ volatile("svc 0" : "+r"(first) : "r"(number), "r"(second) : "memory");
#endif
}
