/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The hashes of ids, compiled for the machine that builds: a line `KEY WORD...` in, the hash and the id out. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hash.h"

int main(void)
{
	char *line = NULL;
	size_t size = 0;

	while (getline(&line, &size, stdin) > 0) {
		__u64 hash = 0, words[PODPERF_SITE_WORDS] = {}, factors[PODPERF_SITE_WORDS];
		char *rest = line, *end;
		__u64 point = strtoull(rest, &rest, 16);

		for (int i = 0; i < PODPERF_SITE_WORDS; i++)
			factors[i] = (point + i) * 0xbf58476d1ce4e5b9ULL | 1;
		for (int i = 0;; i++) {
			__u64 word = strtoull(rest, &end, 16);

			if (end == rest)
				break;
			if (i < PODPERF_SITE_WORDS)
				words[i] = word;
			hash = i ? hash_word(hash, word, point) : word;
			rest = end;
		}
		printf("%llx %llx %llx\n", hash, hash_id(hash), hash_site(words, factors));
	}
	return 0;
}
