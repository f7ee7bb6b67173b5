// SPDX-License-Identifier: Apache-2.0
// Waits below a method that calls itself twenty times, until its input ends.
import java.util.concurrent.locks.LockSupport;

class Deep {
    static long descend(int depth) {
        if (depth == 0) {
            LockSupport.parkNanos(2_000_000);
            return 1;
        }
        return descend(depth - 1) + depth;
    }

    public static void main(String[] arguments) throws Exception {
        Thread thread = new Thread(() -> {
            while (true) {
                descend(20);
            }
        });
        thread.setDaemon(true);
        thread.start();
        System.in.read();
    }
}
