#include <stdio.h>
#include <string.h>

#include "stack.h"

static int fail(void) {
  puts("error");
  return 1;
}

int main(void) {
  char word[64];
  long a, b, unused;
  while (scanf("%63s", word) == 1) {
    char *end;
    long number = strtol(word, &end, 10);
    if (*end == 0) {
      if (!push(number)) return fail();
      continue;
    }
    if (strlen(word) != 1 || !strchr("+-*/", word[0])) return fail();
    if (!pop(&a) || !pop(&b)) return fail();
    switch (word[0]) {
      case '+': push(a + b); break;
      case '-': push(a - b); break;
      case '*': push(a * b); break;
      case '/': push(a / b); break;
    }
  }
  if (size() != 1) return fail();
  pop(&a);
  printf("%ld\n", a);
  return 0;
}
