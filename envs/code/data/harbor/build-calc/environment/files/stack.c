#include "stack.h"

static long values[STACK_SIZE];
static int count;

/* Return 0 if there is no room. */
int push(long value) {
  if (count > STACK_SIZE) return 0;
  values[count++] = value;
  return 1;
}

/* Return 0 if there is no value. */
int pop(long *value) {
  if (count == 0) return 0;
  *value = values[count--];
  return 1;
}

int size(void) { return count; }
