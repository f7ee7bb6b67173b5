// SPDX-License-Identifier: Apache-2.0
// A load of `podperf-bench`: threads that wait and compute below methods that the JIT compiler compiles.
import java.util.ArrayList;
import java.util.Collections;
import java.util.Random;
import java.util.concurrent.ArrayBlockingQueue;
import java.util.concurrent.locks.LockSupport;

class Work {
    /** Calls itself, so that stacks are deep; waits or sorts at the end. */
    static long descend(int depth, ArrayBlockingQueue<Long> queue, boolean waits) throws InterruptedException {
        if (depth > 0) {
            long below = descend(depth - 1, queue, waits);
            return below + depth;
        }
        if (!waits) {
            ArrayList<Integer> numbers = new ArrayList<>();
            Random random = new Random(1);
            for (int i = 0; i < 500; i++) {
                numbers.add(random.nextInt());
            }
            Collections.sort(numbers, (a, b) -> Integer.compare(b, a));
            return numbers.get(0);
        }
        LockSupport.parkNanos(2_000_000);
        Long item = queue.poll();
        return item == null ? 0 : item;
    }

    public static void main(String[] arguments) {
        ArrayBlockingQueue<Long> queue = new ArrayBlockingQueue<>(64);
        for (int number = 0; number < 4; number++) {
            int depth = 10 + 5 * number;
            new Thread(() -> {
                try {
                    for (long round = 0;; round++) {
                        queue.offer(descend(depth, queue, round % 4 != 0));
                    }
                } catch (InterruptedException interrupted) {
                    Thread.currentThread().interrupt();
                }
            }).start();
        }
    }
}
