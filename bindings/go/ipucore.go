// Package ipucore has the decisions of ipu-core in Go: a thin wrapper of the WebAssembly module, by wazero.
package ipucore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
)

// Object is a JSON object. Values have the serialised form of the types of ipu-core with the same names.
type Object = map[string]any

// Core is an instance of the module in one file. It has no state, and serves one goroutine at a time.
type Core struct {
	runtime wazero.Runtime
	module  api.Module
}

// Load loads the module from the file path.
func Load(ctx context.Context, path string) (*Core, error) {
	code, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	runtime := wazero.NewRuntime(ctx)
	module, err := runtime.Instantiate(ctx, code)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("load %s: %w", path, err), runtime.Close(ctx))
	}
	return &Core{runtime, module}, nil
}

// Close frees the module.
func (c *Core) Close(ctx context.Context) error { return c.runtime.Close(ctx) }

// Call answers one request, with the key "call", into the value that answer points to, as json.Unmarshal
// does. A refused request is an error with the rule.
func (c *Core) Call(ctx context.Context, request, answer any) error {
	data, err := json.Marshal(request)
	if err != nil {
		return err
	}
	size := uint64(len(data))
	sent, err := c.module.ExportedFunction("alloc").Call(ctx, size)
	if err == nil && !c.module.Memory().Write(uint32(sent[0]), data) {
		err = errors.New("the module has no memory for the request")
	}
	if err != nil {
		return err
	}
	packed, err := c.module.ExportedFunction("call").Call(ctx, sent[0], size)
	if err != nil {
		return err
	}
	address, length := packed[0]>>32, packed[0]&0xffffffff
	text, _ := c.module.Memory().Read(uint32(address), uint32(length))
	reply := struct{ Ok, Error any }{answer, nil}
	err = json.Unmarshal(text, &reply)
	_, freed := c.module.ExportedFunction("free").Call(ctx, address, length)
	if err = errors.Join(err, freed); err == nil && reply.Error != nil {
		err = fmt.Errorf("%v", reply.Error)
	}
	return err
}

func call[T any](ctx context.Context, c *Core, request Object) (answer T, err error) {
	err = c.Call(ctx, request, &answer)
	return
}

// Place returns {"fits": block}, or {"impossible": reason}.
func (c *Core) Place(ctx context.Context, inventory, request Object, policy string) (Object, error) {
	return call[Object](ctx, c, Object{"call": "place", "inventory": inventory, "request": request, "policy": policy})
}

// Fits returns the number of free IPUs, and how many partitions of each size fit.
func (c *Core) Fits(ctx context.Context, inventory Object) (Object, error) {
	return call[Object](ctx, c, Object{"call": "fits", "inventory": inventory})
}

// Plan returns the plan for a job in its observed state.
func (c *Core) Plan(ctx context.Context, job, observation Object) (Object, error) {
	return call[Object](ctx, c, Object{"call": "plan", "job": job, "observation": observation})
}

// AllocatorStep returns the changes that follow from an event, the new state and the outcome.
func (c *Core) AllocatorStep(ctx context.Context, state Object, controllers []Object, now uint64, event any) (Object, error) {
	return call[Object](ctx, c, Object{"call": "allocator_step", "state": state, "controllers": controllers, "now": now, "event": event})
}

// Check returns the invariants that a plan violates; empty for a valid plan.
func (c *Core) Check(ctx context.Context, job, observation, plan Object) ([]string, error) {
	return call[[]string](ctx, c, Object{"call": "check", "job": job, "observation": observation, "plan": plan})
}
