#ifndef STACK_H
#define STACK_H

#define STACK_SIZE 256

int push(long value);
int pop(long *value);
int size(void);

#endif
