/* A library that loads before any program: it naps with stacks whose frames are all over the program's mapped files. */
#include <stdio.h>
#include <string.h>

#include "nap.h"

#define STACKS 4
#define FRAMES 60
#define FILES 64

struct frame {
	struct frame *caller;
	unsigned long address;
};

static struct frame frames[STACKS][FRAMES];

static void nap_below(struct frame *frame)
{
	struct timespec time = { 0, 20000000 };
#if defined(__x86_64__)
	long result = SYS_nanosleep;
	__asm__ volatile("push %%rbp; mov %3, %%rbp; syscall; pop %%rbp"
			 : "+a"(result)
			 : "D"(&time), "S"(0), "r"(frame)
			 : "rcx", "r11", "memory");
#elif defined(__aarch64__)
	register long number __asm__("x8") = SYS_nanosleep;
	register long first __asm__("x0") = (long)&time;
	register long second __asm__("x1") = 0;
	__asm__ volatile("mov x9, x29; mov x29, %3; svc 0; mov x29, x9"
			 : "+r"(first)
			 : "r"(number), "r"(second), "r"(frame)
			 : "x9", "memory");
#endif
}

__attribute__((constructor)) static void start(void)
{
	unsigned long starts[FILES], ends[FILES], start, end, random = 1;
	char line[512], flags[8];
	int files = 0;
	FILE *maps = fopen("/proc/self/maps", "r");
	while (files < FILES && fgets(line, sizeof line, maps))
		if (sscanf(line, "%lx-%lx %7s", &start, &end, flags) == 3 && flags[2] == 'x' && strchr(line, '/')) {
			starts[files] = start;
			ends[files++] = end;
		}
	fclose(maps);
	for (int stack = 0; stack < STACKS; stack++)
		for (int at = 0; at < FRAMES; at++) {
			/* Every other round starts with the program itself, which is the first file in the maps. */
			int file = at % 2 ? at / 2 % files : 0;
			random = random * 6364136223846793005 + 1442695040888963407;
			frames[stack][at].address = starts[file] + random % (ends[file] - starts[file]);
			frames[stack][at].caller = at + 1 < FRAMES ? &frames[stack][at + 1] : 0;
		}
	for (int stack = 0;; stack = (stack + 1) % STACKS)
		nap_below(frames[stack]);
}
