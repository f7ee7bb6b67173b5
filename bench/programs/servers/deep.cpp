// SPDX-License-Identifier: Apache-2.0
// The C++ load of `podperf-bench servers`: seven threads wait in calls that are 30 deep. `run.sh` builds it
// without frame pointers, and with them for `cpp-pointers`.
#include <chrono>
#include <mutex>
#include <thread>
#include <vector>

static std::mutex shared;
static volatile unsigned sum;

template <int depth> __attribute__((noinline)) unsigned wait(unsigned thread)
{
	unsigned found = wait<depth - 1>(thread + 1);

	return found * 3 + thread;
}

template <> __attribute__((noinline)) unsigned wait<0>(unsigned thread)
{
	{
		std::lock_guard<std::mutex> lock(shared);

		std::this_thread::sleep_for(std::chrono::microseconds(200));
	}
	std::this_thread::sleep_for(std::chrono::milliseconds(1));
	for (unsigned i = 0; i < 20000; i++)
		sum = sum + i;
	return thread;
}

int main()
{
	std::vector<std::thread> threads;

	for (unsigned thread = 0; thread < 7; thread++)
		threads.emplace_back([thread] {
			for (;;)
				sum = sum + wait<30>(thread);
		});
	for (std::thread &thread : threads)
		thread.join();
}
