/*
 * Waits in functions of the C library, from the main thread and from another one, until stdin ends or 100 s are over. It is
 * built by `musl-gcc`, whose C library has no unwind tables.
 */
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define COUNT 24

static sem_t semaphore;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
static int pipe_ends[2];

static struct timespec soon(void)
{
	struct timespec at;

	clock_gettime(CLOCK_REALTIME, &at);
	at.tv_nsec += 3000000;
	if (at.tv_nsec >= 1000000000) {
		at.tv_sec++;
		at.tv_nsec -= 1000000000;
	}
	return at;
}

/* The C library calls this function back. */
static int podperf_compare(const void *one, const void *other)
{
	usleep(100);
	return *(const int *)one - *(const int *)other;
}

static __attribute__((noinline)) int podperf_by_sort(void)
{
	int numbers[COUNT];

	for (int i = 0; i < COUNT; i++)
		numbers[i] = i * 7919 % 1000;
	qsort(numbers, COUNT, sizeof(numbers[0]), podperf_compare);
	return numbers[3];
}

static __attribute__((noinline)) int podperf_by_sleep(void)
{
	return usleep(3000) + 1;
}

static __attribute__((noinline)) int podperf_by_poll(void)
{
	return poll(NULL, 0, 3) + 1;
}

static __attribute__((noinline)) int podperf_by_read(void)
{
	char byte = 0;

	return (int)read(pipe_ends[0], &byte, 1) + byte;
}

static __attribute__((noinline)) int podperf_by_semaphore(void)
{
	struct timespec at = soon();

	return sem_timedwait(&semaphore, &at) + 1;
}

static __attribute__((noinline)) int podperf_by_condition(void)
{
	struct timespec at = soon();
	int error;

	pthread_mutex_lock(&mutex);
	error = pthread_cond_timedwait(&condition, &mutex, &at);
	pthread_mutex_unlock(&mutex);
	return error;
}

static void *podperf_thread(void *ends)
{
	int sum = 0;

	for (;;) {
		sum += podperf_by_sleep() + podperf_by_sort() + podperf_by_condition();
		if (write(pipe_ends[1], "", 1) != 1)
			return ends;
		__asm__ volatile("" : "+r"(sum));
	}
}

int main(void)
{
	struct pollfd input = {.fd = 0, .events = POLLIN};
	time_t end = time(NULL) + 100;
	pthread_t thread;
	int sum = 0;

	if (pipe(pipe_ends) || sem_init(&semaphore, 0, 0) || pthread_create(&thread, NULL, podperf_thread, NULL))
		return 1;
	while (time(NULL) < end && poll(&input, 1, 0) == 0) {
		sum += podperf_by_read() + podperf_by_poll() + podperf_by_semaphore();
		__asm__ volatile("" : "+r"(sum));
	}
	return 0;
}
