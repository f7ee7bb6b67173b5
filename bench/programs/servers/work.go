// SPDX-License-Identifier: Apache-2.0
// A load of `podperf-bench`: goroutines that wait and compute below nested calls.
package main

import (
	"sort"
	"time"
)

//go:noinline
func descend(depth int, items chan int, waits bool) int {
	if depth > 0 {
		return descend(depth-1, items, waits) + depth
	}
	if !waits {
		numbers := make([]int, 500)
		for i := range numbers {
			numbers[i] = i * 7919 % 503
		}
		sort.Slice(numbers, func(a, b int) bool { return numbers[a] > numbers[b] })
		return numbers[0]
	}
	time.Sleep(2 * time.Millisecond)
	select {
	case item := <-items:
		return item
	default:
		return 0
	}
}

func main() {
	items := make(chan int, 64)
	for number := 0; number < 4; number++ {
		go func(depth int) {
			for round := 0; ; round++ {
				select {
				case items <- descend(depth, items, round%4 != 0):
				default:
				}
			}
		}(10 + 5*number)
	}
	select {}
}
