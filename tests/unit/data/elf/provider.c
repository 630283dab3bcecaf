/* A provider without a device. The structures are those of rdma-core's libibverbs/driver.h:
 * LAYOUT 16 is private ABI 16 to 20, LAYOUT 21 is 21 and later. */
#include <stdint.h>
#include <stdlib.h>

#ifndef NAME
#define NAME "tiny"
#endif
#ifndef LOWEST
#define LOWEST 6
#endif
#ifndef HIGHEST
#define HIGHEST 7
#endif
#ifndef LAYOUT
#define LAYOUT 21
#endif
#ifndef CONST
#define CONST const
#endif

struct match {
	void *data;
	const char *modalias;
	uint16_t vendor, device;
	uint8_t kind;
};

struct ops {
	const char *name;
	uint32_t lowest, highest;
	const struct match *table;
#if LAYOUT >= 21
	const struct ops **static_providers;
#endif
	void *(*match_device)(void *);
	void *(*alloc_context)(void *);
	void *(*import_context)(void *);
	void *(*alloc_device)(void *);
	void (*uninit_device)(void *);
};

void REGISTER(const struct ops *ops);

static void *make(void *from)
{
	return from ? malloc(*(uint8_t *)from) : NULL;
}

static void drop(void *what)
{
	free(what);
}

static const struct match devices[] = {{NULL, "pci:*", 1, 2, 1}, {0}};

#define OPS(variable, lo, hi)                                                                   \
	CONST struct ops variable = {                                                           \
		.name = NAME, .lowest = lo, .highest = hi, .table = TABLE, .match_device = MATCH, \
		.alloc_context = make, .alloc_device = make, .uninit_device = drop,             \
	}

#ifndef TABLE
#define TABLE devices
#endif
#ifndef MATCH
#define MATCH NULL
#endif

static OPS(tiny_dev_ops, LOWEST, HIGHEST);

#ifdef LOOKALIKE /* the same shape, never registered, and reachable from elsewhere */
static OPS(lookalike, 1, 1);
const void *first_lookalike(void);
const void *first_lookalike(void)
{
	return &lookalike;
}
#endif

#ifdef SECOND /* a second driver with a range of its own */
static OPS(second_dev_ops, SECOND, SECOND);
static __attribute__((constructor)) void second_register_driver(void)
{
	REGISTER(&second_dev_ops);
}
#endif

static OPS(other_dev_ops, 1, 1);
static struct ops filled;

static inline __attribute__((always_inline)) void enrol(void)
{
#ifdef CHOSEN /* which one is registered shows at run time only */
	REGISTER(getenv("CHOSEN") ? &other_dev_ops : &tiny_dev_ops);
#elif defined(BRANCHED)
	if (getenv("CHOSEN"))
		REGISTER(&other_dev_ops);
	else
		REGISTER(&tiny_dev_ops);
#elif defined(BOTH_IN_ONE)
	REGISTER(&tiny_dev_ops);
	REGISTER(&other_dev_ops);
#elif defined(BY_NUMBER)
	static const struct ops *const all[] = {&tiny_dev_ops, &other_dev_ops};
	REGISTER(all[!!getenv("CHOSEN")]);
#elif defined(FILLED) /* the structure is put together at run time */
	filled = tiny_dev_ops;
	filled.highest = 99;
	REGISTER(&filled);
#elif defined(COPIED)
	struct ops *copy = malloc(sizeof(*copy));
	*copy = tiny_dev_ops;
	copy->highest = 99;
	REGISTER(copy);
#elif defined(ON_STACK)
	struct ops copy = tiny_dev_ops;
	copy.highest = 99;
	REGISTER(&copy);
#else
	REGISTER(&tiny_dev_ops);
#endif
	(void)filled;
	(void)other_dev_ops;
}

#ifdef SILENT /* no constructor */
void tiny_register_driver(void);
void tiny_register_driver(void)
#else
static __attribute__((constructor)) void tiny_register_driver(void)
#endif
{
	enrol();
}

#ifdef BEHIND /* constructors around it, which register nothing */
static int started;
static __attribute__((constructor)) void start(void)
{
	started = atoi("1");
}
#endif
