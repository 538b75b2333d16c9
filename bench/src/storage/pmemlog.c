/* Appends to a libpmemlog pool. Each line of the standard input is a command: "BYTES WRITERS
 * SECONDS". The answer is a line "APPENDS ELAPSED_NS P50 P99 P999 SILENCE", times in nanoseconds.
 * The pool is rewound when it is full. */
#include <libpmemlog.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST_WRITERS = 64, MOST_SAMPLES = 4 << 20 };

static PMEMlogpool *pool;
static size_t bytes;
static uint64_t end;

struct writer {
	pthread_t thread;
	uint32_t *samples;
	size_t room, taken;
	uint64_t silence;
};

static uint64_t now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void *append(void *argument)
{
	struct writer *self = argument;
	char record[4096];
	memset(record, 0x5a, sizeof record);
	uint64_t start = now();
	while (start < end && self->taken < self->room) {
		if (pmemlog_append(pool, record, bytes) != 0) {
			pmemlog_rewind(pool);
			continue;
		}
		uint64_t done = now();
		uint64_t took = done - start;
		if (took > self->silence)
			self->silence = took;
		self->samples[self->taken++] = took > UINT32_MAX ? UINT32_MAX : (uint32_t)took;
		start = done;
	}
	return NULL;
}

static int by_size(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
	return x < y ? -1 : x > y;
}

int main(int count, char **words)
{
	static struct writer writers[MOST_WRITERS];
	double seconds;
	unsigned number;
	if (count != 3)
		return 2;
	pool = pmemlog_create(words[1], strtoull(words[2], NULL, 10), 0600);
	if (!pool) {
		fprintf(stderr, "pmemlog_create: %s\n", pmemlog_errormsg());
		return 1;
	}
	while (scanf("%zu %u %lf", &bytes, &number, &seconds) == 3) {
		if (bytes > 4096 || number < 1 || number > MOST_WRITERS)
			return 2;
		uint64_t begin = now();
		end = begin + (uint64_t)(seconds * 1e9);
		for (unsigned i = 0; i < number; i++) {
			writers[i].room = MOST_SAMPLES / number;
			writers[i].samples = malloc(writers[i].room * sizeof(uint32_t));
			writers[i].taken = 0;
			writers[i].silence = 0;
			if (!writers[i].samples)
				return 1;
		}
		for (unsigned i = 0; i < number; i++)
			if (pthread_create(&writers[i].thread, NULL, append, &writers[i]) != 0)
				return 1;
		size_t total = 0;
		uint64_t silence = UINT64_MAX;
		for (unsigned i = 0; i < number; i++) {
			pthread_join(writers[i].thread, NULL);
			total += writers[i].taken;
			if (writers[i].silence < silence)
				silence = writers[i].silence;
		}
		uint64_t elapsed = now() - begin;
		uint32_t *all = malloc((total + 1) * sizeof(uint32_t));
		if (!all)
			return 1;
		size_t at = 0;
		for (unsigned i = 0; i < number; i++) {
			memcpy(all + at, writers[i].samples, writers[i].taken * sizeof(uint32_t));
			at += writers[i].taken;
			free(writers[i].samples);
		}
		qsort(all, total, sizeof(uint32_t), by_size);
		all[total] = 0;
		printf("%zu %llu %u %u %u %llu\n", total, (unsigned long long)elapsed, all[total / 2],
		       all[total * 99 / 100], all[total * 999 / 1000], (unsigned long long)silence);
		fflush(stdout);
		free(all);
	}
	pmemlog_close(pool);
	return 0;
}
