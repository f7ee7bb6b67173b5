/* Naps in code that it has made itself. Without arguments it writes a perf map of this code, under its process id in
 * its own PID namespace. */
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "nap.h"

#define SIZE 4096

static __attribute__((noinline)) void made(void)
{
	nap(20);
	__asm__ volatile("" ::: "memory");
}

int main(int argc, char **argv)
{
	char *code = mmap(0, SIZE, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char path[64];
	(void)argv;
	memcpy(code, (char *)made, 256);
	__builtin___clear_cache(code, code + 256);
	snprintf(path, sizeof path, "/tmp/perf-%d.map", getpid());
	if (argc == 1) {
		FILE *map = fopen(path, "w");
		fprintf(map, "%lx 10 before\n%lx 100 LazyCompile:~podperfNap app.js:1\n", (long)code - 64, (long)code);
		fclose(map);
	}
	for (;;) {
		((void (*)(void))code)();
		__asm__ volatile("" ::: "memory");
	}
}
